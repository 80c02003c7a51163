"""What preflight and the scan of groups say: a finding, and for each code why it matters and how to mend it."""
