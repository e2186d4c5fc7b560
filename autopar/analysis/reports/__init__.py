"""Reports: what users see of a build, a program and two builds side by side."""
