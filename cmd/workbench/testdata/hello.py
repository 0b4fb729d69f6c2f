print("HELLO")
