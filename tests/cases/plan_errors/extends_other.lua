return plan { extends "extends_itself" }
