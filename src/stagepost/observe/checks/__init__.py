"""What a store tells of itself, judged: pure functions, a finding each."""
