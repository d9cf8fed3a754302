"""Files: safe reading, atomic writing, JSON and checksums."""
