from polyfma.cli import main

main()
