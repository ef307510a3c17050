return plan { at(re"model\.norm", replicated()) }
