"""What a step's time is made of: work, rates, links, exchanges, and what hides behind what."""
