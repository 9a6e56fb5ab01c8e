"""An answer as plain values, and the words and marks for it: what sentences and figures are of."""
