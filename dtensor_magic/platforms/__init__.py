"""What the platform that started this process says about its job: one reader each, all to one description."""
