return plan { extends "lama", extends "gpt9" }
