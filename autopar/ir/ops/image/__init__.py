"""Rules of ops that read windows of images or signals: convolutions, pools, interpolation."""
