"""Files as every room may read and write them; imports contracts alone."""
