"""Pages: one file per page that is written, beside it the view that its template shows."""
