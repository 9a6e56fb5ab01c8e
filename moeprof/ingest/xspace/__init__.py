"""The bytes of an XSpace as columns: two readers, one contract (`space`)."""
