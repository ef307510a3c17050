return plan { extends "not_a_plan" }
