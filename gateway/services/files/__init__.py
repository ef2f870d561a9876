"""Files of tenants: taken in, told of, handed out, removed, and swept."""

from gateway.services.files.places import Places
from gateway.services.files.service import FileService, UploadSaid
from gateway.services.files.upkeep import FileUpkeep

__all__ = ["FileService", "FileUpkeep", "Places", "UploadSaid"]
