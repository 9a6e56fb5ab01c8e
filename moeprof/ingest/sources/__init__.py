"""Which files a path stands for, who recorded them, and what lies beside them."""
