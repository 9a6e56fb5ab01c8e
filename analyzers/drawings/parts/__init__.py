"""What several drawings share."""
