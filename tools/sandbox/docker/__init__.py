"""Backend ``docker``: the warm zygote in a hardened container of an image made here."""
