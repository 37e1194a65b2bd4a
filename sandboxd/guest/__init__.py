"""Our end of the line to the guest agent inside a sandbox.

Knows the guest protocol and how to keep a connection; not who leases a box, nor who makes it.
"""

from sandboxd.guest.attachment import Attachment, Ended, Gap, OutputEvent, Piece, Started
from sandboxd.guest.client import Guest
from sandboxd.guest.guest_files import FileBody, GuestFiles
from sandboxd.guest.line import GuestLost
from sandboxd.guest.messages import GuestReadings, Hello, OutputPiece
from sandboxd.guest.ports import GuestStream, Listener

__all__ = [
    "Attachment",
    "Ended",
    "FileBody",
    "Gap",
    "Guest",
    "GuestFiles",
    "GuestLost",
    "GuestReadings",
    "GuestStream",
    "Hello",
    "Listener",
    "OutputEvent",
    "OutputPiece",
    "Piece",
    "Started",
]
