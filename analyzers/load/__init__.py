"""How many tokens a step has, and which experts, ranks and nodes they went to."""
