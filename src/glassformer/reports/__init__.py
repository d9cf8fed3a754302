"""Reports: one page about runs or a study, for screen, phone and paper; numbers are read from files."""
