"""Which experts, ranks and nodes the tokens of a run went to, as it recorded it."""
