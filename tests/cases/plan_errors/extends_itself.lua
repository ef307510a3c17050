return plan { extends "extends_other" }
