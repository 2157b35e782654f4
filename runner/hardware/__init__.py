"""What machines tell of themselves: the part of the accelerator layer that asks vendors' tools and the kernel."""
