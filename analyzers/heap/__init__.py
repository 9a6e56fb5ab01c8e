"""What lies in a device's memory while a program runs, as its compiler laid it out."""
