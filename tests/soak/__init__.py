"""Long fault campaigns: ``make soak``. Each prints what was done, what was broken meanwhile, and what was lost."""
