"""How several processes become one run: ids of programs, clocks."""
