"""The version of Cellwise, where a Job's image can read it too: that holds this package alone, not installed."""

VERSION = "0.1.0"
