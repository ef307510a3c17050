-- The base plan's own line is blamed, and the errors of both are said.
return plan { extends "unknown_style", at("x", rowwize {}) }
