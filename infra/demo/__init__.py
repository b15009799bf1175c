"""`towline demo`: MovieLens 100K through the whole product, watched live."""
