"""Predict, measure, learn, apply. The only room that imports TensorFlow."""
