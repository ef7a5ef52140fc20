"""What a device raises. Whoever only handles it needs no TVM."""


class DeviceError(Exception):
    """A device cannot be used. The message says what is wrong and what to do."""
