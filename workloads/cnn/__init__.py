"""Image classification by networks of the literature, built by timm."""
