"""Attribution: which seeds are switched off to find out what each is worth, and what that says."""
