"""Images of a container engine: there when a box needs them, gone when the disk needs room.

Knows the engine and registries' words, and nothing of boxes but that containers use images.
"""

from sandboxd.backends.docker.imaging.images import DockerImages, open_images
from sandboxd.backends.docker.imaging.nouns import ImageFacts, ImageSettings, Login

__all__ = ["DockerImages", "ImageFacts", "ImageSettings", "Login", "open_images"]
