"""Backend ``docker``: a zygote in a hardened container of an image built on this machine."""
