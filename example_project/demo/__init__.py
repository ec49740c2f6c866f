"""The demo: real servers, workers and producers, real pictures, and faults in the middle."""
