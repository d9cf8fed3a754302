"""Reports: one page about runs or a study, for screen, phone and paper, with numbers read from files."""
