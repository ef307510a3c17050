local window = config.sliding_window
return plan { divides(window / 2, 8) }
