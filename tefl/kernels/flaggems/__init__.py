"""FlagGems' functions under this project's op names. FlagGems is optional and imported at the first call."""
