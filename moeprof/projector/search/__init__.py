"""Plans for a number of devices: all there are, which are legal, which fit, how fast each is."""
