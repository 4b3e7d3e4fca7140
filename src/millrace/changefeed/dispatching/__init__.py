"""The data path of changefeeds on one capture: dispatchers taken over, rounds formed, results stored [P2, P5, V11]."""
