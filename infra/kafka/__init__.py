"""The jars of the local broker: the pom that names them and the script that locks them."""
