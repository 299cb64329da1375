"""Who answers which query: a router fitted to recorded outcomes."""
