"""Tables inside moeprof: columns of one length on NumPy alone, grouped and matched."""
