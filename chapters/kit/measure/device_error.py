"""What a device raises. Code that only handles it need not load TVM."""


class DeviceError(ValueError):
    """A device cannot be used. The message says what is wrong and what to do."""
