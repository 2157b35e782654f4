"""Image classification by networks from the literature, built by timm."""
