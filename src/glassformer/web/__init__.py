"""HTTP parts that the studio and `serve` share: access control, messages, listening, static files."""
