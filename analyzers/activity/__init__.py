"""What devices do during the used steps: spans, unions of intervals, kinds of work."""
