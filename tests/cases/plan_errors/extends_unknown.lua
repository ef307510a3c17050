return plan { extends "lama", extends "zebra" }
