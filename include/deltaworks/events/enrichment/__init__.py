"""What is looked up of events, and how their private fields are masked, in the pass that parses them."""
