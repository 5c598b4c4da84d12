"""What runs inside the images: the trainer and the server. Imports only configs and itself."""
